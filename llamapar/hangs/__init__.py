"""A run that hangs: whom it waits for, said in the axes of its layout. The guide is docs/hangs.md."""
