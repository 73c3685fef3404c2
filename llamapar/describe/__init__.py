"""What a person describes: models and their files, layouts, jobs, GPUs; and which tensor each axis cuts."""
