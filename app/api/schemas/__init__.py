"""Models and fields that several resources share."""
