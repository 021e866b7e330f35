//! The attributes of a type: those that the shadow gets too, and the settings that the author has made, which the
//! derive does not set a second time.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, Result, Token, parenthesized};

/// The author's `serde` and `schemars` settings that the derive needs to know.
#[derive(Default)]
pub(crate) struct Container {
    /// `rename`. If it is absent, the derive adds one, because the schema would contain the shadow's name.
    pub(crate) renamed: bool,
    /// `default` without a function: absent fields have the values of the type's `Default`.
    pub(crate) defaulted: bool,
    /// `deny_unknown_fields`. If it is absent, the derive adds it.
    pub(crate) denies_unknown: bool,
    /// `serde(crate = ..)`, which is present if the type also derives `Serialize`.
    pub(crate) names_serde: bool,
    /// `schemars(crate = ..)`.
    pub(crate) names_schemars: bool,
}

impl Container {
    /// Reads the attributes of the type.
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut container = Self::default();
        for attribute in attributes.iter().filter(|attribute| is_setting(attribute)) {
            let serde = attribute.path().is_ident("serde");
            attribute.parse_nested_meta(|meta| container.take(&meta, serde))?;
        }
        Ok(container)
    }

    fn take(&mut self, meta: &ParseNestedMeta<'_>, serde: bool) -> Result<()> {
        let names_crate = meta.path.is_ident("crate");
        self.names_serde |= names_crate && serde;
        self.names_schemars |= names_crate && !serde;
        self.renamed |= meta.path.is_ident("rename");
        self.denies_unknown |= meta.path.is_ident("deny_unknown_fields");
        self.defaulted |= meta.path.is_ident("default") && !meta.input.peek(Token![=]);
        skip_value(meta)
    }
}

/// The attributes that the shadow gets too.
pub(crate) fn passed_through(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| is_setting(attribute) || attribute.path().is_ident("doc"))
}

/// Refuses `#[serde(flatten)]`, which serde accepts together with `deny_unknown_fields` and then rejects valid input.
pub(crate) fn refuse_flatten(attributes: &[Attribute]) -> Result<()> {
    for attribute in attributes.iter().filter(|attribute| is_setting(attribute)) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("flatten") {
                return Err(Error::new_spanned(
                    &meta.path,
                    "`flatten` cannot be combined with the denial of unknown fields",
                ));
            }
            skip_value(&meta)
        })?;
    }
    Ok(())
}

fn is_setting(attribute: &Attribute) -> bool {
    attribute.path().is_ident("serde") || attribute.path().is_ident("schemars")
}

/// Consumes `= value` or `(..)` after a name, as `parse_nested_meta` requires.
fn skip_value(meta: &ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>().map(drop)
    } else if meta.input.peek(syn::token::Paren) {
        let inner;
        parenthesized!(inner in meta.input);
        inner.parse::<proc_macro2::TokenStream>().map(drop)
    } else {
        Ok(())
    }
}
