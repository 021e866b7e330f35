//! Reads the attributes of a type: which ones pass through to the shadow, and which settings of
//! serde the author has already chosen, so that the derive does not set them twice.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, Result, Token, parenthesized};

/// The author's `serde` and `schemars` attributes on the type, as far as the derive needs them.
#[derive(Default)]
pub(crate) struct Container {
    /// `rename`, which the shadow would otherwise need in order to keep its name out of the schema.
    pub(crate) renamed: bool,
    /// `default` without a function: the type's own `Default` fills the absent fields.
    pub(crate) defaulted: bool,
    /// `deny_unknown_fields`, which is allowed although it is always set.
    pub(crate) denies_unknown: bool,
    /// `serde(crate = ..)`, which a type that derives `Serialize` as well carries.
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

/// The attributes that the shadow carries as well.
pub(crate) fn passed_through(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| is_setting(attribute) || attribute.path().is_ident("doc"))
}

/// Refuses `#[serde(flatten)]`: serde would accept it and then reject valid input.
pub(crate) fn refuse_flatten(attributes: &[Attribute]) -> Result<()> {
    for attribute in attributes.iter().filter(|attribute| is_setting(attribute)) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("flatten") {
                return Err(Error::new_spanned(
                    &meta.path,
                    "`flatten` does not combine with denying unknown fields",
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

/// Steps over `= value` or `(..)` after a name; `parse_nested_meta` insists on it.
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
