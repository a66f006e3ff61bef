"""Training: blocks, the trainer, stopping and checkpoints."""
