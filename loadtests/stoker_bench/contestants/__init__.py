"""Who is asked: servers and runtimes, with what they cost, and the turns that they take."""
