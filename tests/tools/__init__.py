"""Commands for whoever works on the tool: ``accept`` renews the rules' examples and the fixtures,
``documents`` the tables in docs/."""
