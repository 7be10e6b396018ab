"""The parts of the bench that know nothing of a particular program: processes, namespaces, figures, reports."""
