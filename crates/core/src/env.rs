//! The environment of a rank (DESIGN §8).
