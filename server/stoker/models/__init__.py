"""Which models there are: folders, registered versions, labels, and what a deployment makes of them."""
