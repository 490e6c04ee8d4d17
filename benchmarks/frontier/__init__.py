"""What no pairs, few pairs and many pairs are worth between unrelated encoders."""
