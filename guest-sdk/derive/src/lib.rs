//! The derive macro behind `a2g_guest_sdk::Arguments`.
//!
//! A derive cannot add further derives to the type that it is applied to. It therefore emits a *shadow*, a private copy
//! of the type that derives serde's `Deserialize` and schemars' `JsonSchema`, and implements both traits for the
//! author's type by means of the shadow. It uses the SDK's re-exports, so the author names neither crate. The shadow is
//! in an unnamed constant, so it adds no name to the author's module, and paths in attributes resolve as on the type
//! itself.

mod container;
mod shadow;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a type usable as the arguments of a tool, or as part of them.
///
/// It implements `serde::Deserialize` and `schemars::JsonSchema`. Unknown fields are denied, in the
/// parser and in the schema (`additionalProperties: false`). Doc comments become descriptions.
/// `#[serde(..)]` and `#[schemars(..)]` attributes on the type, its fields and its variants are
/// passed through, except `flatten`, which serde cannot combine with denying unknown fields.
///
/// Structs and enums of every shape are supported; generic types and unions are not.
#[proc_macro_derive(Arguments, attributes(serde, schemars))]
pub fn arguments(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    shadow::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
