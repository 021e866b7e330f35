//! The scripts and the style of the console. They are part of the binary.
//!
//! `htmx` 2.0.11 and its extension `sse` 2.2.4 are the published files, under the Zero-Clause BSD licence
//! (`assets/LICENSE-*`); the test below has their digests.

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

struct Asset {
    name: &'static str,
    mime: &'static str,
    content: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const ASSETS: [Asset; 5] = [
    Asset {
        name: "console.css",
        mime: "text/css; charset=utf-8",
        content: include_str!("assets/console.css"),
    },
    Asset { name: "console.js", mime: SCRIPT, content: include_str!("assets/console.js") },
    Asset { name: "icon.svg", mime: "image/svg+xml", content: include_str!("assets/icon.svg") },
    Asset { name: "htmx.min.js", mime: SCRIPT, content: include_str!("assets/htmx.min.js") },
    Asset { name: "sse.min.js", mime: SCRIPT, content: include_str!("assets/sse.min.js") },
];

/// `GET /console/assets/{name}`. It needs no session: the files are the same for everybody.
pub(super) async fn serve(Path(name): Path<String>) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.mime)),
        // A page names the version of the program with each file.
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=86400, immutable")),
    ];
    (headers, asset.content).into_response()
}

#[cfg(test)]
mod tests {
    use super::ASSETS;
    use a2g_types::tool::Digest;

    #[test]
    fn the_libraries_are_the_published_files() {
        let digest = |name| {
            let asset = ASSETS.iter().find(|asset| asset.name == name).unwrap();
            Digest::compute(asset.content.as_bytes()).to_string()
        };
        assert_eq!(digest("htmx.min.js"), "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717");
        assert_eq!(digest("sse.min.js"), "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136");
    }
}
