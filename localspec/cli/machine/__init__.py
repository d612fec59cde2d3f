"""Commands that examine and measure this machine."""
