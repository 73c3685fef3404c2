"""What there is: models and their files, layouts, jobs, where tensors are cut, and how a person says so."""
