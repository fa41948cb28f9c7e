"""Keys of services, and the tokens that are signed for them."""
