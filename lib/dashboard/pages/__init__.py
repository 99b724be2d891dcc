"""The pages: lists, forms and a run's detail, rendered here; what they show of anybody's text is escaped by the templates."""
