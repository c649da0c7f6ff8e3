//! The console at `/console`: a page for those who run the server.
//!
//! Its files hold nothing, so anybody may load them. Whatever it shows it asks the API for, with the key that is typed into it.

use crate::page_files::{PageFile, Sockets, file_routes};
use axum::{Router, response::Redirect, routing::get};

const FILES: [PageFile; 3] = [
    ("/console", "text/html; charset=utf-8", include_bytes!("../../../web/dist/console/index.html")),
    ("/console/app.js", "text/javascript; charset=utf-8", include_bytes!("../../../web/dist/console/app.js")),
    ("/console/app.css", "text/css; charset=utf-8", include_bytes!("../../../web/dist/console/app.css")),
];

/// The routes of the console's files.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    file_routes(FILES, Sockets::None).route("/console/", get(async || Redirect::permanent("/console")))
}
