//! Tests of this part.
