"""What localspec keeps between runs: probe results, tuned settings, prompts, answers, conversations."""
