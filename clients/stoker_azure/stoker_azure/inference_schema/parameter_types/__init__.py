"""The kinds of arguments that can be described; each module imports its library only when it is used."""
