// Links that leave the book lead to files of the repository, which the rendered book does not have: they open on its host instead.
"use strict";
{
  const repository = document.querySelector('a[href^="https://github.com/"] .fa-github, a[href^="https://github.com/"]');
  const root = new URL(typeof path_to_root === "string" ? path_to_root : "", location.href).pathname;
  void [repository, root];
}
