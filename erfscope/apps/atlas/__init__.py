"""What every model of timm is, measured before."""
