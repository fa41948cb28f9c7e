"""`make house`: figures of the code and its documentation, one a line, so that `diff` compares two commits."""
