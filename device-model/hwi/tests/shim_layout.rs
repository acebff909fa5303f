//! Compares the kernel module's hand-written header with `hwi::shim`.
//!
//! A C program that includes the header prints each size, offset and value. The test compares them
//! one by one.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{collections::BTreeMap, fs, process::Command};

use nicforge_hwi::shim;

/// A C expression, and its expected value.
type Expected = BTreeMap<String, u64>;

macro_rules! structs {
    ($($rust:ident $c:literal { $($field:ident)* })*) => {
        /// Returns the size of each Rust struct, and the offset and size of each of its fields.
        fn structs() -> Expected {
            let mut all = Expected::new();
            $(
                all.insert(format!("sizeof(struct {})", $c), size_of::<shim::$rust>() as u64);
                all.insert(format!("_Alignof(struct {})", $c), align_of::<shim::$rust>() as u64);
                let value = shim::$rust::default();
                // This pattern names every field, or it does not compile.
                let shim::$rust { $($field: _),* } = value;
                $(
                    let field = stringify!($field);
                    all.insert(
                        format!("offsetof(struct {}, {field})", $c),
                        std::mem::offset_of!(shim::$rust, $field) as u64,
                    );
                    all.insert(
                        format!("sizeof(((struct {} *)0)->{field})", $c),
                        size_of_val(&value.$field) as u64,
                    );
                )*
            )*

            all
        }
    };
}

structs! {
    Info "nicforge_shim_info" {
        version flags vendor device subsystem_vendor subsystem class revision domain bus slot function reserved
        numa_node resets dma_quota dma_used
    }
    Area "nicforge_shim_area" { offset len }
    Region "nicforge_shim_region" { index flags size offset wc_offset area_count reserved areas }
    Irq "nicforge_shim_irq" { kind flags count reserved }
    IrqBind "nicforge_shim_irq_bind" { kind start count eventfd }
    IrqRange "nicforge_shim_irq_range" { kind start count reserved }
    DmaAlloc "nicforge_shim_dma_alloc" { len address offset handle flags }
    DmaSegment "nicforge_shim_dma_segment" { address len }
    DmaPin "nicforge_shim_dma_pin" { start len segments address flags handle capacity count }
    DmaFree "nicforge_shim_dma_free" { handle reserved }
}

macro_rules! constants {
    ($($name:ident)*) => {
        /// Returns the Rust value of each macro of the header.
        fn constants() -> Expected {
            Expected::from([$((concat!("NICFORGE_SHIM_", stringify!($name)).to_owned(), shim::$name as u64)),*])
        }
    };
}

constants! {
    VERSION IOCTL_TYPE INFO_RESET INFO_IOMMU INFO_ATTACHMENT INFO_DMA64
    REGION_BARS REGION_CONFIG REGION_READ REGION_WRITE REGION_MMAP REGION_WC REGION_MEMORY REGION_PORTS MAX_AREAS
    IRQ_INTX IRQ_MSI IRQ_MSIX IRQ_MASKABLE IRQ_AUTOMASKED IRQ_FILE
    MAX_BUFFERS MAX_BUFFER_LEN DMA_READ DMA_WRITE
    GET_INFO GET_REGION GET_IRQ BIND_IRQ UNBIND_IRQ MASK_IRQ UNMASK_IRQ ALLOC_DMA PIN_DMA FREE_DMA RESET
}

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kmod-shim/include/uapi/nicforge_shim.h");

/// Compiles and runs a C program that includes the header. Returns the values that it prints for
/// the expressions.
fn values_in_c(expressions: impl Iterator<Item = String>) -> Expected {
    let mut source =
        format!("#include <stddef.h>\n#include <stdio.h>\n#include \"{HEADER}\"\nint main(void)\n{{\n");
    for expression in expressions {
        source +=
            &format!("\tprintf(\"%llu %s\\n\", (unsigned long long)({expression}), \"{expression}\");\n");
    }

    source += "\treturn 0;\n}\n";
    let directory = tempfile::tempdir().unwrap();
    let (c, program) = (directory.path().join("layout.c"), directory.path().join("layout"));
    fs::write(&c, source).unwrap();
    let options = ["-std=c11", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-o"];
    let built = Command::new("cc").args(options).arg(&program).arg(&c).output().unwrap();

    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let printed = Command::new(program).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();

    printed
        .lines()
        .map(|line| {
            let (value, expression) = line.split_once(' ').unwrap();
            (expression.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn c_header_and_rust_structs_agree_on_every_size_offset_and_value() {
    let mut expected = structs();
    expected.extend(constants());

    let layout = values_in_c(expected.keys().cloned());

    assert_eq!(layout, expected);
}

#[test]
fn every_macro_and_struct_of_the_header_is_compared() {
    let header = fs::read_to_string(HEADER).unwrap();
    let known: Vec<String> = structs().into_keys().chain(constants().into_keys()).collect();

    let unknown: Vec<_> = header
        .lines()
        .filter_map(|line| {
            let name = line.strip_prefix("#define ").or_else(|| line.strip_prefix("struct "))?;
            name.split_whitespace().next()
        })
        .filter(|name| !name.starts_with("_UAPI") && !known.iter().any(|text| text.contains(*name)))
        .collect();

    assert_eq!(unknown, Vec::<&str>::new());
}
