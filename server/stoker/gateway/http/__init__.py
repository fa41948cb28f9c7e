"""What HTTP asks of every endpoint, whoever scores: heads, bodies, encodings, ids, and the lines of answers."""
