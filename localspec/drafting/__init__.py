"""What several parts know about drafts: acceptance, agreement, speed-up, pass costs, build steps."""
