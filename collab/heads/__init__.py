"""What the heads of a model do, which of them matter, and removing the others; of originals and conversions alike."""
