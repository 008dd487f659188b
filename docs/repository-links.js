// A link that leaves the book leads to a file of the repository, which the rendered book does not have: it opens on the repository's host.
"use strict";
{
  const FILES = "https://github.com/rollmesh/rollmesh/blob/main/";
  const pageDepth = path_to_root.split("../").length - 1;
  for (const link of document.querySelectorAll("main a[href^='../']")) {
    const [, up, path, anchor] = link.getAttribute("href").match(/^((?:\.\.\/)+)([^#]*)(.*)$/);
    // mdBook has renamed Markdown files.
    if (up.length / "../".length > pageDepth) link.href = FILES + path.replace(/\.html$/, ".md") + anchor;
  }
}
