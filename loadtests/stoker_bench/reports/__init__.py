"""What is printed and written of a bench, and the machine that it ran on."""
