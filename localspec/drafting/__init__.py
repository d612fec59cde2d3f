"""Knowledge about drafts that parts share: acceptance, agreement, speed-up, pass costs, build steps."""
