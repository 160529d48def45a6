"""Random weights and features: samples, expectations in closed form, and Jacobians."""
