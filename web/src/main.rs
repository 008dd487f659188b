//! Entry of the page.

fn main() {
    rollmesh_web::mount();
}
