"""The gate's decision rule, its tolerances and its structure, on numbers whose verdict is known by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from erfscope.apps.gate.gate import (
    BaselineEntry,
    BaselineMeasure,
    CheckReport,
    changes,
    compare_entries,
    from_pairs,
    judge,
    parse,
    structure,
    tolerances,
)
from erfscope.apps.gate.judge import signed_difference
from erfscope.apps.gate.noise import decide, noise_of
from erfscope.apps.gate.tolerance import Tolerance
from erfscope.core import MEASURES, ErfscopeError, Trf

#: Deviations of ten groups with a jackknife standard error of 1, and others that have nothing to do with them.
WOBBLE = np.array([1, -1, 1, -1, 1, -1, 1, -1, 1, -1]) / 3.0
OTHER = np.array([1, 1, -1, -1, 0, 0, 1, 1, -1, -1]) / 3.0


def jackknife_se(without) -> float:
    """The standard error from the values without one group each."""
    return math.sqrt(len(without) - 1) * float(np.std(without))


def recorded(value: float, noise: float = 0.0, *, wobble=WOBBLE, n: int = 20, **more) -> BaselineMeasure:
    return BaselineMeasure(
        value=value, se=noise, n=n, over="images", leave_one_out=tuple(value + noise * wobble), **more
    )


@pytest.mark.parametrize(
    ("word", "side", "amount", "relative"),
    [
        ("-5%", "narrower", 0.05, True),
        ("+5%", "wider", 0.05, True),
        ("5%", "both", 0.05, True),
        ("-0.02", "narrower", 0.02, False),
        ("+0.02", "wider", 0.02, False),
        (" .5 % ", "both", 0.005, True),
        ("1e-2", "both", 0.01, False),
        (-0.02, "narrower", 0.02, False),
        (3, "both", 3.0, False),
    ],
)
def test_a_word_says_which_way_and_how_far(word, side, amount, relative):
    found = parse("r50", word)
    assert (found.side, found.relative) == (side, relative)
    assert found.amount == pytest.approx(amount)
    assert parse("r50", str(found)) == found


def test_the_command_lines_pairs_are_read_one_by_one_and_in_lists():
    found = from_pairs(["r50=-5%, r90=5%", "far_mass=-0.02"])
    assert {name: str(t) for name, t in found.items()} == {"r50": "-5%", "r90": "5%", "far_mass": "-0.02"}
    with pytest.raises(ErfscopeError, match="write MEASURE=TOLERANCE"):
        from_pairs(["r50"])
    with pytest.raises(ErfscopeError, match="given twice"):
        from_pairs(["r50=-50%,r50=-60%"])
    with pytest.raises(ErfscopeError, match="given twice"):
        tolerances({"r50": "-5%", " r50": "-50%"})
    with pytest.raises(ErfscopeError, match="are a mapping"):
        tolerances(["r50=-5%"])


@pytest.mark.parametrize(
    ("obtained", "noise", "word", "verdict"),
    [
        # T = 5, S = 2.82 noise: Student's 99 % point for ten groups.
        (100.0, 0.1, "-5%", "pass"),
        (95.5, 0.1, "-5%", "pass"),
        (94.9, 0.1, "-5%", "fail"),  # D = 5.1 > T, though not by S: no chance explains D
        (80.0, 0.1, "-5%", "fail"),
        (80.0, 2.0, "-5%", "fail"),
        (90.0, 2.0, "-5%", "fail"),  # D = 10 > S = 5.6
        (90.0, 4.0, "-5%", "cannot tell"),  # D = 10 < S = 11.3
        (100.0, 2.0, "-5%", "pass"),  # D + S = 5.6 < 2 T: a change of 10 would not show so
        (95.5, 2.0, "-5%", "cannot tell"),  # D + S = 10.1 > 2 T
        (100.0, 4.0, "-5%", "cannot tell"),
        (120.0, 0.1, "-5%", "pass"),
        (120.0, 4.0, "-5%", "pass"),  # D = -20: noisy, and clearly no narrower
        (100.5, 4.0, "-5%", "cannot tell"),
        (120.0, 0.1, "5%", "fail"),
        (120.0, 0.1, "+5%", "fail"),
        (80.0, 0.1, "+5%", "pass"),
        (80.0, 0.1, "5%", "fail"),
        (95.5, 0.1, "-4", "fail"),
        (96.5, 0.1, "-4", "pass"),
    ],
)
def test_the_rule_is_d_t_and_s(obtained, noise, word, verdict):
    found = judge("r50", parse("r50", word), recorded(obtained, noise), recorded(100.0))
    assert found.word == verdict
    assert found.se == pytest.approx(noise, abs=1e-6)


@settings(deadline=None)  # Student's quantiles are imported late
@given(
    st.floats(50, 150),
    st.floats(0, 5),
    st.sampled_from(["-5%", "+5%", "5%", "-4", "4"]),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_every_verdict_is_the_rule_written_out(obtained, noise, word, measures, looks):
    found = judge("r50", parse("r50", word), recorded(obtained, noise), recorded(100.0), measures=measures, looks=looks)
    difference = obtained - 100.0
    move = {"-": -difference, "+": difference}.get(word[0], abs(difference))
    limit = 5.0 if word.endswith("%") else 4.0
    tails = 1 if word[0] in "+-" else 2
    change, rest = (student.isf(0.01 / share, 9) * noise for share in (tails * measures * looks, looks))
    if min(abs(move - change), abs(move - limit), abs(move + rest - 2 * limit)) < 1e-6:
        return
    fails, passes = move > limit and move > change, move <= limit and move + rest <= 2 * limit
    assert found.word == ("fail" if fails else "pass" if passes else "cannot tell")


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0, 5), st.floats(-20, 20), st.integers(1, 5), st.integers(1, 5))
def test_noise_up_to_the_tolerance_leaves_a_verdict_and_more_of_it_never_turns_one(limit, se, move, measures, looks):
    noise, more = (noise_of(scale * se, 10, tails=1, measures=measures, looks=looks) for scale in (1.0, 2.0))
    word = decide(move, limit, noise)
    assert word != "cannot tell" or noise.most > limit
    assert decide(move, limit, more) in (word, "cannot tell")


def simulated(changes, spreads, *, tolerance, looks=5, runs=4000, seed=0):
    """Share of each verdict over checks of several measures that share their images, look by look, twice as many
    images at each: group means are normal, so that their jackknife is exact."""
    numbers, found = np.random.default_rng(seed), {"pass": 0, "fail": 0, "cannot tell": 0}
    for _ in range(runs):
        total = np.zeros((10, len(changes)))
        for look in range(looks):
            n = 2 ** max(look - 1, 0)
            common = numbers.normal(size=(10, 1))
            total += np.sqrt(n) * (0.8 * common + 0.6 * numbers.normal(size=(10, len(changes)))) * spreads
            means = total / 2**look
            moves, errors = np.mean(means, 0) + changes, np.std(means, 0, ddof=1) / np.sqrt(10)
            words = {
                decide(move, tolerance, noise_of(se, 10, tails=1, measures=len(changes), looks=looks))
                for move, se in zip(moves, errors, strict=True)
            }
            word = "fail" if "fail" in words else "cannot tell" if "cannot tell" in words else "pass"
            if word != "cannot tell":
                break
        found[word] += 1 / runs
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.5, 1.0, 3.0])
def test_a_check_fails_an_unchanged_model_in_one_of_a_hundred_cases_at_most(tolerance):
    # Three measures whose standard errors over the first images are 1, 2 and 3.
    spreads = np.sqrt(10) * np.array([1.0, 2.0, 3.0])
    unchanged = simulated(np.zeros(3), spreads, tolerance=tolerance)
    # 4000 runs: 1 % has a standard error of 0.16 %.
    assert unchanged["fail"] <= 0.01 + 3 * 0.0016
    # One measure that has moved by twice the tolerance.
    for place in range(3):
        moved = simulated(2 * tolerance * (np.arange(3) == place), spreads, tolerance=tolerance, seed=place)
        assert moved["pass"] <= 0.01 + 3 * 0.0016


def test_a_measure_that_falls_as_the_erf_grows_is_guarded_the_other_way_round():
    assert MEASURES["center_share"].wider == -1
    for value, word in ((0.3, "pass"), (0.5, "fail")):
        found = judge("center_share", parse("center_share", "-5%"), recorded(value), recorded(0.4))
        assert found.word == word


def test_rounding_moves_a_small_share_by_a_share_of_a_quarter():
    """0.002 of a quarter is 0.0005, beyond which a move by more than 0.3% of 0.1 is one."""
    for value, word in ((0.1002, "pass"), (0.1004, "cannot tell"), (0.102, "fail")):
        found = judge("center_share", parse("center_share", "0.3%"), recorded(value), recorded(0.1), rounding=2e-3)
        assert found.word == word


def test_what_the_pictures_do_to_both_cancels():
    expected, paired = recorded(100.0, 4.0), recorded(99.0, 4.0)
    assert judge("r50", parse("r50", "-5%"), paired, expected).word == "pass"
    other = dataclasses.replace(paired, leave_one_out=tuple(99.0 + 4.0 * OTHER))
    found = judge("r50", parse("r50", "-5%"), other, expected)
    differences = [a - b for a, b in zip(other.leave_one_out, expected.leave_one_out, strict=True)]
    assert found.se == pytest.approx(jackknife_se(differences))
    assert found.word == "cannot tell"


def test_groups_that_were_lost_leave_two_separate_errors():
    left = tuple(99.0 + 0.3 * WOBBLE[:9])
    shorter = BaselineMeasure(value=99.0, se=0.3, n=18, over="images", leave_one_out=left)
    found = judge("r50", parse("r50", "-5%"), shorter, recorded(100.0, 0.4))
    assert found.se == pytest.approx(math.hypot(jackknife_se(left), 0.4))


def bare(value, **more) -> BaselineMeasure:
    """Without an error."""
    return BaselineMeasure(value=value, se=None, n=20, over="images", **more)


@pytest.mark.parametrize(
    ("obtained", "expected", "fragment"),
    [
        (None, recorded(1.0), "was not measured"),
        (recorded(1.0), None, "is not in the baseline"),
        (bare(None), recorded(1.0), "does not exist for this map"),
        (recorded(1.0), bare(None), "the map of the baseline"),
        (bare(1.0, leave_one_out=(1.0, 1.0)), recorded(1.0), "has no error bar"),
    ],
)
def test_what_is_not_there_is_never_a_pass(obtained, expected, fragment):
    found = judge("r50", parse("r50", "-5%"), obtained, expected)
    assert found.word == "cannot tell"
    assert fragment in found.reason


def test_a_measure_that_never_has_an_error_is_compared_as_it_is():
    for value, word in ((0.49, "pass"), (0.4, "fail")):
        assert judge("coverage", parse("coverage", "-5%"), bare(value), bare(0.5)).word == word


def test_the_number_of_samples_follows_the_root_law_with_a_margin():
    # S = 2.82, T = 1: S^2 times as many samples bring S to T, and the margin of two covers the error's own error.
    found = judge("r50", parse("r50", "-1%"), recorded(99.9, 1.0, n=20), recorded(100.0, n=20))
    assert found.needed == 320
    assert 20 * student.isf(0.01, 9) ** 2 * 2 == pytest.approx(320, abs=10)
    assert f"{found.needed} samples" in found.reason
    nothing = judge("r50", parse("r50", "0"), recorded(99.9, 1.0), recorded(100.0))
    assert (nothing.word, nothing.needed) == ("cannot tell", None)


def test_growth_is_a_notice_under_a_guard_against_shrinking():
    for word, value, notice in (("-5%", 120.0, "wider: r50 +20.00 ± 0.11 px"), ("-5%", 104.0, ""), ("5%", 104.0, "")):
        found = judge("r50", parse("r50", word), recorded(value, 0.1), recorded(100.0)).notice
        assert notice in found
        assert bool(found) is bool(notice)


FIELD = Trf(
    size_px=(31, 31),
    box_px=((0, 30), (0, 30)),
    stride_px=(4.0, 4.0),
    center_px=(15.0, 15.0),
    center_exact=True,
    local_size_px=(31, 31),
    local_box_px=((0, 30), (0, 30)),
    exact=True,
    reference_px=(64, 64),
)


def shape(**changed):
    return structure("body", (8, 16, 16), (4, 4), dataclasses.replace(FIELD, **changed))


def shaped(*map_shape):
    return dataclasses.replace(shape(), map_shape=map_shape)


@pytest.mark.parametrize(
    ("obtained", "expected", "verdicts"),
    [
        (shape(), shape(), {}),
        (shape(center_px=(15.0 + 1e-9, 15.0)), shape(), {}),
        (shape(center_px=(15.5, 15.0)), shape(), {"unit centre": "fail"}),
        (shape(stride_px=(2.0, 4.0)), shape(), {"stride": "fail"}),
        (shape(size_px=(31, 29)), shape(), {"TRF shrank": "fail"}),
        (shape(size_px=(33, 29)), shape(), {"TRF shrank and grew": "fail"}),
        (shape(size_px=(33, 31)), shape(), {"TRF grew": "notice"}),
        (shape(), shape(global_by="attention"), {"TRF shrank": "fail"}),
        (shape(global_by="attention"), shape(), {"TRF grew": "notice"}),
        (shape(global_by="mean"), shape(global_by="attention"), {}),
        (
            shape(global_by="attention", local_size_px=(15, 15)),
            shape(global_by="attention"),
            {"TRF without global operations shrank": "fail"},
        ),
        (shape(size_px=(29, 29)), shape(exact=False), {"TRF shrank": "cannot tell"}),
        # A bound in place of an exact field proves no growth.
        (shape(exact=False), shape(), {"TRF is only bounded now": "cannot tell"}),
        *((shaped(*other), shape(), {"map shape": "fail"}) for other in ((8, 15, 16), (6, 16, 16), (8, 16))),
        (dataclasses.replace(shape(), layer="tail"), shape(), {"layer": "notice"}),
    ],
)
def test_structure_is_compared_exactly_and_growth_is_no_failure(obtained, expected, verdicts):
    assert {change.what: change.verdict for change in changes(obtained, expected)} == verdicts


def test_a_changed_field_names_the_first_layer_that_changed():
    wide, narrow = FIELD, dataclasses.replace(FIELD, size_px=(15, 15), local_size_px=(15, 15))
    everywhere = dataclasses.replace(wide, global_by="attention")

    def of(body, **layers):
        return structure("body", (8, 16, 16), (4, 4), body, {**layers, "body": body})

    for ours, theirs, first in (
        (of(narrow, stem=wide, mid=narrow), of(wide, stem=wide, mid=wide), "mid"),
        (of(wide, stem=wide, mid=wide), of(narrow, mid=narrow, stem=wide), "mid"),
        (of(narrow, stem=narrow), of(wide, mid=wide), "body"),
        (of(wide, stem=wide, mid=wide), of(everywhere, stem=wide, mid=everywhere), "mid"),
        (of(narrow, stem=narrow), shape(), ""),
    ):
        assert [change.first_layer for change in changes(ours, theirs)] == [first]


@pytest.mark.parametrize(("difference", "sign"), [(0.001, "0"), (-0.001, "0"), (9.0, "+"), (-9.0, "-"), (0.0, "0")])
def test_a_difference_that_is_printed_as_zero_has_no_sign(difference, sign):
    size = recorded(50.0, 0.5)
    found = dataclasses.replace(judge("r50", parse("r50", "-5%"), size, size), difference=difference, se=0.5)
    assert signed_difference(found)[0] == sign
    assert " ± " in signed_difference(found)


def test_the_line_on_default_tolerances_is_there_where_nobody_named_any():
    for named, has_line in ((None, True), (tolerances({"r50": "-5%"}), False)):
        found = compare_entries(entry(), entry(), name="x", tolerances=named)
        assert ("default tolerance" in CheckReport(verdicts=(found,), baseline=Path("b.json")).text) is has_line


def entry(value: float = 100.0, sha256: str | None = "a", **more) -> BaselineEntry:
    numbers = {name: recorded(value, 0.01) for name in ("r50", "r90", "far_mass")}
    return BaselineEntry(
        **{
            "structure": shape(),
            "weights": {"sha256": sha256},
            "protocol": {"samples": 20},
            "measures": numbers,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("value", "sha256", "word", "cause"),
    [
        (98.0, "a", "fail", "measurement changed"),
        (102.0, "a", "fail", "measurement changed"),
        (99.5, "a", "pass", "same weights"),
        (98.0, "b", "pass", "model changed, within"),
        (94.0, "b", "fail", "model changed"),
        (106.0, "b", "pass", "model changed, within"),
        (98.0, None, "pass", "model changed, within"),
    ],
)
def test_the_same_weights_may_move_by_one_percent_and_others_by_five(value, sha256, word, cause):
    found = compare_entries(entry(value, sha256), entry(), name="x")
    assert found.word == word
    assert found.cause.startswith(cause)


def test_own_tolerances_hold_whatever_the_weights():
    wide = {"r50": Tolerance(side="narrower", amount=0.1, relative=True)}
    found = compare_entries(entry(92.0), entry(), name="x", tolerances=wide)
    assert found.word == "pass"
    assert [measure.name for measure in found.measures] == ["r50"]


def test_another_question_is_not_compared_and_a_failed_structure_counts_first():
    found = compare_entries(entry(protocol={"samples": 40}), entry(), name="x")
    assert (found.word, found.cause, found.measures) == ("cannot tell", "settings changed", ())
    assert "samples is 40 and was 20" in found.reason
    small = {"structure": shape(size_px=(9, 9))}
    shrunk = compare_entries(entry(protocol={"samples": 40}, **small), entry(), name="x")
    assert (shrunk.word, shrunk.exit_code) == ("fail", 1)
    sizes = [{"protocol": {"input_size": [side]}} for side in (32, 64)]
    other = compare_entries(entry(**sizes[0], **small), entry(**sizes[1]), name="x")
    assert (other.word, other.structure) == ("cannot tell", ())


def test_what_cannot_be_used_or_is_missing_is_never_a_pass():
    unusable = compare_entries(entry(unusable="NaN", measures={}), entry(), name="x")
    assert (unusable.exit_code, unusable.reason) == (3, "NaN")
    bare = entry(measures={})
    for now, before in ((entry(), None), (entry(), bare), (bare, entry()), (entry(structure=None), entry())):
        found = compare_entries(now, before, name="x")
        assert (found.word, found.exit_code) == ("cannot tell", 3)
    assert compare_entries(bare, entry(), name="x", structure_only=True).word == "pass"


def test_weights_of_a_factory_are_not_those_of_a_model_that_was_given():
    given, made = ({"sha256": None, "source": source} for source in ("given", "factory"))
    asked = {"samples": 20, "weights": "auto", "method": "gradient"}
    before = entry(weights=given, protocol=asked)
    found = compare_entries(entry(weights=made, protocol=asked), before, name="x")
    assert (found.word, found.exit_code) == ("cannot tell", 3)
    assert "weights is factory and was auto" in str(found)
    assert compare_entries(entry(weights=given, protocol=asked), before, name="x").word == "pass"


def test_other_circumstances_are_a_notice():
    now, before = (entry(recorded={"torch": torch, "threads": 1}) for torch in "21")
    found = compare_entries(now, before, name="x")
    assert (found.word, found.notices) == ("pass", ("measured with torch 2 (was 1)",))


def ready(side, amount, relative):
    return Tolerance(side=side, amount=amount, relative=relative)


@pytest.mark.parametrize(
    ("name", "word", "fragment"),
    [
        ("r51", "-5%", "did you mean 'r50'"),
        ("r50", "five", "cannot read the tolerance 'five'"),
        ("r50", "--5%", "cannot read"),
        ("r50", True, "cannot read"),
        ("anisotropy", "-5%", "write '5%' for both ways"),
        ("best_shape", "5%", "is a word"),
        ("angle_deg", "5%", "no percentage"),
        ("r50", "-100%", "guards nothing"),
        ("r50", "-1000%", "guards nothing"),
        ("far_mass", -5, "write '-5%'"),
        ("far_mass", "-5", "write '-5%'"),
        ("far_mass", 5.0, "write '5%'"),
        ("far_mass", "+300", r"write '\+5%'"),
        ("center_share", "1", "is a share from 0 to 1"),
        ("area99", 1, "is a share from 0 to 1"),
        ("r50", "-1e300", "guards nothing"),
        ("r50", -1e300, "guards nothing"),
        ("kurtosis_row", "1e300", "guards nothing"),
        ("r50", "1e300%", "guards nothing"),
        ("r50", "1e999", "not finite"),
        ("r50", float("inf"), "cannot read"),
        ("r50", float("-inf"), "cannot read"),
        ("r50", float("nan"), "cannot read"),
        ("r50", "nan", "cannot read"),
        ("r50", "100%", "cannot fall by 100 %.*or '\\+100%' for one way"),
        ("r50", "200%", "cannot fall by 200 %"),
        ("center_share", "250%", "or '-250%' for one way"),
        ("center_share", "+100%", "cannot fall"),
        ("r50", ready("narrower", 1.0, True), "cannot fall by 100 %"),
        ("far_mass", ready("both", 5, False), "write '5%'"),
        ("anisotropy", ready("narrower", 0.1, True), "write '10%' for both ways"),
        ("angle_deg", ready("both", 0.1, True), "no percentage"),
    ],
)
def test_a_tolerance_that_means_nothing_or_that_no_value_exceeds_is_refused(name, word, fragment):
    with pytest.raises(ErfscopeError, match=fragment):
        parse(name, word)


@pytest.mark.parametrize(
    ("name", "amount", "expected", "guards"),
    [
        *(("angle_deg", 89, 10, True), ("angle_deg", 90, 10, False)),
        *(("r50", 9, 10, True), ("r50", 10, 10, False)),
        *(("far_mass", 0.7, 0.2, False), ("far_mass", 0.1, 0.2, True), ("kurtosis_row", 1000, 3, True)),
    ],
)
def test_a_tolerance_guards_where_a_value_may_move_by_more(name, amount, expected, guards):
    """An angle turns by 90 degrees at most, a share lies between 0 and 1, and no size falls below 0."""
    assert ready("both", amount, False).guards(name, expected) is guards


def test_a_ready_tolerance_has_a_finite_amount_and_a_side():
    for amount in (float("nan"), float("inf"), -0.05, 1e300, True, "0.05", None):
        with pytest.raises(ErfscopeError, match="the amount of a tolerance is a number"):
            ready("narrower", amount, True)
    with pytest.raises(ErfscopeError, match="'narrower', 'wider' or 'both', not 'down'"):
        ready("down", 0.05, True)


@pytest.mark.parametrize(
    "zero", ["0", "0%", "-0", "-0.0", -0.0, "-0%", Tolerance(side="narrower", amount=-0.0, relative=False)]
)
def test_a_tolerance_of_negative_zero_lets_nothing_fall(zero):
    found = parse("r50", zero)
    assert judge("r50", found, recorded(99.9), recorded(100.0)).word == "fail"
    assert judge("r50", found, recorded(100.0), recorded(100.0)).word == "pass"
    assert parse("r50", str(found)) == found


@pytest.mark.parametrize(
    ("name", "word", "value", "pointless"),
    [
        ("r50", "-60", 50.0, True),
        ("r50", "-50", 50.0, True),  # at the value: nothing can fall by more
        ("r50", "-49.9", 50.0, False),
        ("r50", "50", 50.0, True),
        ("r50", "+60", 50.0, False),  # a wider one still shows
        ("r50", "+150%", 50.0, False),
        ("far_mass", "-0.02", 0.02, True),
        ("far_mass", "-0.02", 0.0, True),
        ("far_mass", "-0.02", 0.03, False),
        ("center_share", "-0.7", 0.4, True),  # a narrower ERF lifts it, to 1 at most
        ("center_share", "-0.5", 0.4, False),
        ("center_share", "5%", 0.97, False),
        ("entropy_area", "-1000", 900.0, True),
        ("offset", "2", 0.3, False),  # may grow
        ("angle_deg", "5", 2.0, False),
        ("gaussian_r2", "0.5", 0.9, False),
        ("anisotropy", "0.5", 1.1, False),
        ("kurtosis_row", "3", 0.1, False),
        # A percentage that nothing can exceed passes with a notice.
        ("far_mass", "-5%", 0.0, None),
        ("center_share", "-5%", 0.98, None),
    ],
)
def test_a_tolerance_guards_nothing_where_the_baseline_cannot_move_by_it(name, word, value, pointless):
    found = judge(name, parse(name, word), recorded(value, 0.0), recorded(value, 0.0))
    assert (found.word, "guards nothing" in found.reason) == (("cannot tell", True) if pointless else ("pass", False))
    assert (f"{word!r} guards nothing; leave {name} out" in found.notice) is (pointless is None)


@given(
    st.sampled_from(
        [name for name, measure in MEASURES.items() if measure.kind in ("radius", "width", "sigma", "area", "share")]
    ),
    st.floats(1e-3, 1.0),
    st.floats(-1e3, 1e3),
    st.sampled_from(["-", "+", ""]),
    st.booleans(),
)
def test_no_tolerance_lets_everything_be_lost(name, value, amount, sign, percent):
    """Whatever is accepted against a narrower ERF fails where all of it has gone."""
    wider = MEASURES[name].wider
    if wider is None or sign == "+":
        return
    gone = recorded(0.0 if wider == 1 else 1.0)
    try:
        found = judge(name, parse(name, f"{sign}{abs(amount)}{'%' if percent else ''}"), gone, recorded(value))
    except ErfscopeError:
        return
    # A percentage may tolerate the little that is left of a share to its end.
    assert found.word != "pass" or (percent and wider == -1 and value * (1 + abs(amount) / 100) >= 1)


def operations(**modules: str) -> dict[str, tuple[str, ...]]:
    return {name.replace("_", "."): tuple(text.split(", ")) for name, text in modules.items()}


def of(operations, **more):
    return dataclasses.replace(shape(**more), operations=operations)


PLAIN = operations(conv1="conv2d stride=1x1 padding=1x1", act1="relu", conv2="conv2d stride=1x1", act2="relu")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"act1": ("gelu",)}, "act1: relu -> gelu"),
        ({"act1": ("gelu",), "act2": ("gelu",)}, "act1, act2: relu -> gelu"),
        ({"conv2": ("conv2d stride=2x2",)}, "conv2: conv2d stride 1x1 -> conv2d stride 2x2"),
        ({"act1": ("relu", "mul other=2")}, "act1: – -> mul other 2"),
        ({"": ("add", "add")}, "the model itself: – -> 2 add"),
        ({"behind act2": ("mul other=1.5",)}, "behind act2: – -> mul other 1.5"),
    ],
)
def test_a_changed_operation_is_named_with_the_layer_that_runs_it(changed, text):
    found = [change for change in changes(of({**PLAIN, **changed}), of(PLAIN)) if change.is_operation]
    assert [(change.brief, change.verdict) for change in found] == [(text, "notice")]


def test_the_same_operations_in_another_order_are_a_change_and_in_layers_of_other_names_none():
    body = {"body": ("conv2d", "relu")}
    (found,) = changes(of({"body": ("relu", "conv2d")}), of(body))
    assert found.brief == "body: the same operations -> another order"
    assert not [*changes(of({"trunk": ("conv2d", "relu")}), of(body))]
    # Baselines of earlier versions know none.
    assert not [*changes(of(PLAIN), shape())]


def exact(value: float, operations=PLAIN, *, wobble=WOBBLE, **more) -> BaselineEntry:
    """What is measured with noise of half its value, on images that are known."""
    measures = {"r50": recorded(value, 0.5 * value, wobble=wobble)}
    more = {"protocol": {"samples": 20, "dtype": "float32"}, "recorded": {"pixels": "p"}, **more}
    return entry(structure=of(operations), measures=measures, **more)


GELU = {**PLAIN, "act1": ("gelu",)}


@pytest.mark.parametrize(
    ("value", "operations", "word", "cause"),
    [
        (100.0, PLAIN, "pass", "same weights"),
        (100.15, PLAIN, "pass", "same weights"),  # float32 rounds by up to 0.2 %
        (100.5, PLAIN, "pass", "code changed, within the tolerances"),
        (98.5, PLAIN, "fail", "code changed, with the same weights"),
        (100.5, GELU, "pass", "operations changed, within the tolerances"),
        (98.5, GELU, "fail", "operations changed, with the same weights"),
    ],
)
def test_the_same_weights_on_the_same_images_leave_no_noise(value, operations, word, cause):
    allowed = tolerances({"r50": "1%"})
    found = compare_entries(exact(value, operations, wobble=OTHER), exact(100.0), name="x", tolerances=allowed)
    assert (found.word, found.cause) == (word, cause)
    assert found.measures[0].se == 0
    # Other images, other weights and types with few digits are noise.
    few_digits = {"samples": 20, "dtype": "float16"}
    for more in ({"recorded": {"pixels": "q"}}, {"weights": {"sha256": "b"}}, {"protocol": few_digits}):
        other = exact(value, operations, wobble=OTHER, **more)
        known = dataclasses.replace(exact(100.0), protocol=other.protocol)
        assert compare_entries(other, known, name="x", tolerances=allowed).word == "cannot tell"


BIGGER = of(PLAIN, size_px=(45, 45))


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (entry(102.0, "b", structure=of(PLAIN)), "PASS x · weights changed, within the tolerances"),
        (entry(50.0, "b", structure=of(PLAIN)), "FAIL x · weights changed: r50 100 -> 50.0 px (-5%)"),
        (entry(102.0, "b", structure=of(GELU)), "PASS x · model changed, within the tolerances: act1: relu -> gelu"),
        (entry(102.0, "b", structure=BIGGER), "PASS x · structure changed, within the tolerances: TRF 31 -> 45"),
        (entry(structure=of(GELU), measures={}), "PASS x · operations changed: act1: relu -> gelu"),
        (entry(structure=BIGGER, measures={}), "PASS x · structure changed (allowed): TRF 31 -> 45"),
        # Layers of other names have other weights by name, and which of them changed is not known.
        (entry(102.0, "b", structure=of({"a": PLAIN["act1"]})), "PASS x · model changed, within the tolerances"),
    ],
)
def test_the_cause_says_which_part_of_a_model_changed(now, line):
    found = compare_entries(
        now,
        entry(structure=of(PLAIN)),
        name="x",
        tolerances=tolerances({"r50": "-5%"}),
        structure_only=not now.measures,
    )
    assert found.in_one_line.text.startswith(line)


def test_a_changed_environment_is_not_called_a_change_of_code():
    now, before = (exact(value, recorded={"pixels": "p", "torch": torch}) for value, torch in ((98.0, "2"), (100, "1")))
    assert compare_entries(now, before, name="x").cause.startswith("code or environment changed")


def test_one_line_says_why_a_check_does_not_pass():
    smaller, square = (dataclasses.replace(exact(100.0), structure=shape(size_px=(side, side))) for side in (71, 103))
    for now, before, words, line in (
        (smaller, square, "1%", "FAIL x · structure changed: TRF 103 -> 71"),
        (
            exact(98.0, GELU),
            exact(100.0),
            "1%",
            "FAIL x · operations changed, with the same weights: act1: relu -> gelu; r50 100 -> 98.0 px (1%)",
        ),
        (
            entry(protocol={"samples": 40}),
            entry(),
            "1%",
            "INCONCLUSIVE x · settings changed: samples is 40 and was 20",
        ),
        (exact(100.0), exact(100.0), "1%", "PASS x · same weights"),
    ):
        found = compare_entries(now, before, name="x", tolerances=tolerances({"r50": words}))
        assert found.in_one_line.text == line
    found = compare_entries(entry(), entry(), name="x", tolerances=tolerances({"r50": "-100"}))
    # Not called noise.
    assert (found.word, found.cause) == ("cannot tell", "a measure cannot be compared")
    assert "guards nothing" in found.in_one_line.text
