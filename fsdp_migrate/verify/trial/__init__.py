"""What is run, in which order, to answer a question: a pair of versions, a resumed run, a row of
world sizes, a timing."""
