//! The code of the shadow, and of the impls that use it.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, Result, Variant};

use crate::container::{Container, passed_through, refuse_flatten};

/// The whole expansion of `#[derive(Arguments)]`.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    if !input.generics.params.is_empty() {
        let message = "`Arguments` does not support generic types";
        return Err(Error::new_spanned(&input.generics, message));
    }
    let container = Container::read(&input.attrs)?;
    let shadow = format_ident!("__{}Arguments", input.ident);
    let definition = definition(input, &container, &shadow)?;
    let conversion = conversion(input, &shadow);
    let default = container.defaulted.then(|| default(input, &shadow));
    let impls = impls(&input.ident, &shadow);
    Ok(quote! {
        #[doc(hidden)]
        const _: () = {
            #definition
            #conversion
            #default
            #impls
        };
    })
}

/// The shadow itself, with the author's attributes and the two derives.
fn definition(input: &DeriveInput, container: &Container, shadow: &Ident) -> Result<TokenStream> {
    let attributes = passed_through(&input.attrs);
    let name = input.ident.to_string();
    let rename = (!container.renamed).then(|| quote!(#[serde(rename = #name)]));
    let deny = (!container.denies_unknown).then(|| quote!(#[serde(deny_unknown_fields)]));
    let serde = (!container.names_serde).then(|| quote!(#[serde(crate = "::a2g_guest_sdk::serde")]));
    let schemars =
        (!container.names_schemars).then(|| quote!(#[schemars(crate = "::a2g_guest_sdk::schemars")]));
    let body = match &input.data {
        Data::Struct(data) => {
            let fields = shadow_fields(&data.fields)?;
            let end = (!matches!(data.fields, Fields::Named(_))).then(|| quote!(;));
            quote!(struct #shadow #fields #end)
        }
        Data::Enum(data) => {
            let variants = data.variants.iter().map(shadow_variant).collect::<Result<Vec<_>>>()?;
            quote!(enum #shadow { #(#variants,)* })
        }
        Data::Union(_) => {
            let message = "`Arguments` does not support unions";
            return Err(Error::new_spanned(&input.ident, message));
        }
    };
    Ok(quote! {
        #[derive(::a2g_guest_sdk::serde::Deserialize, ::a2g_guest_sdk::schemars::JsonSchema)]
        #serde
        #schemars
        #deny
        #rename
        #(#attributes)*
        #body
    })
}

fn shadow_variant(variant: &Variant) -> Result<TokenStream> {
    let attributes = passed_through(&variant.attrs);
    let ident = &variant.ident;
    let fields = shadow_fields(&variant.fields)?;
    Ok(quote!(#(#attributes)* #ident #fields))
}

fn shadow_fields(fields: &Fields) -> Result<TokenStream> {
    let each = fields.iter().map(shadow_field).collect::<Result<Vec<_>>>()?;
    Ok(match fields {
        Fields::Named(_) => quote!({ #(#each,)* }),
        Fields::Unnamed(_) => quote!(( #(#each,)* )),
        Fields::Unit => TokenStream::new(),
    })
}

fn shadow_field(field: &Field) -> Result<TokenStream> {
    refuse_flatten(&field.attrs)?;
    let attributes = passed_through(&field.attrs);
    let kind = &field.ty;
    Ok(match &field.ident {
        Some(name) => quote!(#(#attributes)* #name: #kind),
        None => quote!(#(#attributes)* #kind),
    })
}

/// `From<Shadow> for Type`, field by field.
fn conversion(input: &DeriveInput, shadow: &Ident) -> TokenStream {
    let ident = &input.ident;
    let arms: Vec<TokenStream> = match &input.data {
        Data::Struct(data) => {
            let members = members(&data.fields);
            vec![quote!(#shadow #members => #ident #members)]
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                let members = members(&variant.fields);
                quote!(#shadow::#name #members => #ident::#name #members)
            })
            .collect(),
        Data::Union(_) => Vec::new(),
    };
    quote! {
        #[automatically_derived]
        impl ::core::convert::From<#shadow> for #ident {
            fn from(shadow: #shadow) -> Self {
                match shadow { #(#arms,)* }
            }
        }
    }
}

/// The fields as they appear both in a pattern and in a constructor.
fn members(fields: &Fields) -> TokenStream {
    let names = fields
        .iter()
        .enumerate()
        .map(|(index, field)| field.ident.clone().unwrap_or_else(|| format_ident!("field_{index}")));
    match fields {
        Fields::Named(_) => quote!({ #(#names,)* }),
        Fields::Unnamed(_) => quote!(( #(#names,)* )),
        Fields::Unit => TokenStream::new(),
    }
}

/// `Default` for the shadow, from the type's own `Default`, for `#[serde(default)]` on the type.
fn default(input: &DeriveInput, shadow: &Ident) -> TokenStream {
    let ident = &input.ident;
    let Data::Struct(data) = &input.data else {
        return TokenStream::new();
    };
    let members = members(&data.fields);
    quote! {
        #[automatically_derived]
        impl ::core::default::Default for #shadow {
            fn default() -> Self {
                let #ident #members = <#ident as ::core::default::Default>::default();
                #shadow #members
            }
        }
    }
}

/// The two traits on the author's type.
fn impls(ident: &Ident, shadow: &Ident) -> TokenStream {
    quote! {
        #[automatically_derived]
        impl<'de> ::a2g_guest_sdk::serde::Deserialize<'de> for #ident {
            fn deserialize<D>(deserializer: D) -> ::core::result::Result<Self, D::Error>
            where
                D: ::a2g_guest_sdk::serde::Deserializer<'de>,
            {
                <#shadow as ::a2g_guest_sdk::serde::Deserialize<'de>>::deserialize(deserializer)
                    .map(::core::convert::Into::into)
            }
        }

        #[automatically_derived]
        impl ::a2g_guest_sdk::schemars::JsonSchema for #ident {
            fn inline_schema() -> bool {
                <#shadow as ::a2g_guest_sdk::schemars::JsonSchema>::inline_schema()
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                <#shadow as ::a2g_guest_sdk::schemars::JsonSchema>::schema_name()
            }

            fn schema_id() -> ::std::borrow::Cow<'static, str> {
                <#shadow as ::a2g_guest_sdk::schemars::JsonSchema>::schema_id()
            }

            fn json_schema(
                generator: &mut ::a2g_guest_sdk::schemars::SchemaGenerator,
            ) -> ::a2g_guest_sdk::schemars::Schema {
                <#shadow as ::a2g_guest_sdk::schemars::JsonSchema>::json_schema(generator)
            }
        }
    }
}
