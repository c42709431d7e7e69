"""The parts of examples/train_moe_lm.py."""
