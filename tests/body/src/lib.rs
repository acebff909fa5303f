//! The attribute [`body`], which registers a test body where it is defined.
//!
//! - In: a function of `nicforge-tests`, the machines it runs on, and the doors (ways to reach a
//!   device) that it does not run through, each with the reason.
//! - Out: the same function, and a `Body` in `nicforge_tests::bodies`, which test programs read.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    FnArg, Ident, ItemFn, LitStr, Path, ReturnType, Token, Type,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
    spanned::Spanned,
};

/// Registers a test body.
///
/// The body is a function with one argument and no result. The argument is `&dyn Rig`, or
/// `&impl Network` for a body of the matching layer, which also runs on a network in memory.
///
/// ```ignore
/// #[body]
/// #[body(not_through(guests) = OPERATORS_ADMIN)]
/// #[body(not_through(vfio) = "a reason of this body alone", not_through(shim) = KERNEL_ADDRESSES)]
/// #[body(on(MACHINE, DEPTH_1, DEPTH_256))]
/// ```
///
/// - `on`: the machines, by their paths. Without it the body runs on `MACHINE`, or a body of the
///   matching layer on `CARDS`, `UNITS` and `TORUS`, which are then in scope where the body is.
/// - `not_through`: doors that the body does not run through, and the reason: a string, or the name
///   of a constant in `nicforge_tests::bodies::reasons`. The doors are `in_process`, `served`,
///   `served_by_epoll`, `vfio`, `shim` and `shim_iommu`. `shim` stands for the guests of QEMU and
///   of our own virtual machine, and `guests` for all of the last three.
#[proc_macro_attribute]
pub fn body(
    arguments: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let arguments = syn::parse_macro_input!(arguments as Arguments);
    let function = syn::parse_macro_input!(function as ItemFn);

    let registration = match registration(&arguments, &function) {
        Ok(registration) => registration,
        Err(error) => error.into_compile_error(),
    };
    quote! { #function #registration }.into()
}

/// Returns the code that registers a test body.
fn registration(arguments: &Arguments, function: &ItemFn) -> syn::Result<TokenStream> {
    let name = &function.sig.ident;
    let argument = Argument::of(function)?;
    let run = match argument {
        Argument::Rig => quote! { Run::Rig(#name) },
        // A closure chooses the type that the body is generic over.
        Argument::Network => quote! {
            Run::Network {
                in_memory: |network| #name(network),
                on_cards: |network| #name(network),
                on_units: |network| #name(network),
                on_torus: |network| #name(network),
            }
        },
    };
    let machines = arguments.machines(&argument);
    let exclusions = arguments.exclusions.iter().flat_map(Exclusion::of_each_door);

    Ok(quote! {
        #[allow(unsafe_code, reason = "linkme puts it into a section, and checks its type")]
        const _: () = {
            #[allow(unused_imports, reason = "not every body has doors and reasons")]
            use crate::bodies::{Body, Door, GuestDoor, HostDoor, Run, reasons};

            #[::linkme::distributed_slice(crate::bodies::BODIES)]
            static BODY: Body = Body {
                module: module_path!(),
                function: stringify!(#name),
                line: line!(),
                machines: &[#(&#machines),*],
                not_through: &[#(#exclusions),*],
                run: #run,
            };
        };
    })
}

/// The argument of a body.
enum Argument {
    /// `&dyn Rig`.
    Rig,
    /// `&impl Network`.
    Network,
}

impl Argument {
    /// Returns a function's argument. It is an error if the function is no body.
    fn of(function: &ItemFn) -> syn::Result<Self> {
        let signature = &function.sig;
        let mut inputs = signature.inputs.iter();

        if let (Some(FnArg::Typed(argument)), None) = (inputs.next(), inputs.next())
            && let ReturnType::Default = signature.output
            && let Type::Reference(reference) = &*argument.ty
        {
            match *reference.elem {
                Type::TraitObject(_) => return Ok(Self::Rig),
                Type::ImplTrait(_) => return Ok(Self::Network),
                _ => (),
            }
        }

        let message = "a body has one argument, `&dyn Rig` or `&impl Network`, and no result";
        Err(syn::Error::new(signature.span(), message))
    }
}

/// The arguments of the attribute.
#[derive(Default)]
struct Arguments {
    /// The machines that it names.
    on: Option<Vec<Path>>,
    exclusions: Vec<Exclusion>,
}

impl Arguments {
    /// Returns the machines that the body runs on.
    fn machines(&self, argument: &Argument) -> Vec<Path> {
        let named = |name| Ident::new(name, proc_macro2::Span::call_site()).into();
        self.on.clone().unwrap_or_else(|| match argument {
            Argument::Rig => vec![syn::parse_quote!(MACHINE)],
            Argument::Network => ["CARDS", "UNITS", "TORUS"].map(named).into(),
        })
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();

        while !input.is_empty() {
            let word: Ident = input.parse()?;
            if word == "on" && arguments.on.is_none() {
                arguments.on = Some(list(input)?);
            } else if word == "not_through" {
                arguments.exclusions.push(input.parse()?);
            } else {
                let message = "a body has one `on(MACHINE, ...)`, and `not_through(door, ...) = REASON`";
                return Err(syn::Error::new(word.span(), message));
            }

            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }

        Ok(arguments)
    }
}

/// Doors that a body does not run through: `(vfio, shim) = REASON`.
struct Exclusion {
    /// The doors, as expressions.
    doors: Vec<TokenStream>,
    /// The reason, as an expression.
    reason: TokenStream,
}

impl Exclusion {
    /// Returns a pair of door and reason for each door.
    fn of_each_door(&self) -> impl Iterator<Item = TokenStream> {
        let reason = &self.reason;
        self.doors.iter().map(move |door| quote! { (#door, #reason) })
    }
}

impl Parse for Exclusion {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let named: Vec<Ident> = list(input)?;
        let mut doors = Vec::new();
        for name in &named {
            doors.extend(doors_of(name)?);
        }

        input.parse::<Token![=]>()?;
        let reason = if input.peek(LitStr) {
            let text: LitStr = input.parse()?;
            quote! { #text }
        } else {
            let constant: Ident = input.parse()?;
            quote! { reasons::#constant }
        };

        Ok(Self { doors, reason })
    }
}

/// Returns the doors that a name in the attribute stands for, as expressions.
fn doors_of(name: &Ident) -> syn::Result<Vec<TokenStream>> {
    let guests = [quote! { Vfio }, quote! { Shim }, quote! { ShimIommu }, quote! { Own }];
    let guests = guests.map(|door| quote! { Door::Guest(GuestDoor::#door) });
    let [vfio, shim, shim_iommu, own] = guests.clone();

    let doors = match name.to_string().as_str() {
        "in_process" => vec![quote! { Door::Host(HostDoor::InProcess) }],
        "served" => vec![quote! { Door::Host(HostDoor::Served) }],
        "served_by_epoll" => vec![quote! { Door::Host(HostDoor::ServedByEpoll) }],
        "vfio" => vec![vfio],
        "shim" => vec![shim, own],
        "shim_iommu" => vec![shim_iommu],
        "guests" => guests.to_vec(),
        _ => return Err(syn::Error::new(name.span(), "there is no such door")),
    };
    Ok(doors)
}

/// Parses a list in parentheses that is not empty.
fn list<T: Parse>(input: ParseStream<'_>) -> syn::Result<Vec<T>> {
    let content;
    let parentheses = syn::parenthesized!(content in input);
    let list = Punctuated::<T, Token![,]>::parse_terminated(&content)?;

    if list.is_empty() {
        return Err(syn::Error::new(parentheses.span.join(), "the list is empty"));
    }
    Ok(list.into_iter().collect())
}
