"""What users have labelled, in whichever format, as masks of one set of classes."""
