"""Small procedural worlds that recipes train on and tasks ask about: pictures, shapes, digits, code."""
