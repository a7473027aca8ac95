"""What tests share: an in-memory network, models made on the spot. Never imported by the product."""
