//! Numbers as messages have them: their kinds, and the order of their bytes.

use bytemuck::Pod;

/// The order of bytes in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// The least first.
    Little,
    /// The greatest first.
    Big,
}

impl Order {
    /// That of this processor.
    pub const NATIVE: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };
}

macro_rules! numbers {
    ($($code:literal $variant:ident $kind:ty;)*) => {
        /// A kind of number that messages carry. Its value is its code in a message.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each is named for the type of Rust that it is")]
        pub enum Number {
            $($variant = $code,)*
        }

        impl Number {
            /// The one of that code.
            pub fn of_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name: `i8` to `i64`, `u8` to `u64`, `f32`, `f64`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($kind),)*
                }
            }

            /// Bytes of one.
            pub fn size(self) -> usize {
                match self {
                    $(Self::$variant => size_of::<$kind>(),)*
                }
            }
        }

        $(
            impl sealed::Sealed for $kind {}

            impl Element for $kind {
                const NUMBER: Number = Number::$variant;
            }
        )*
    };
}

/// A type of Rust that messages carry.
pub trait Element: Pod + sealed::Sealed {
    /// Its kind.
    const NUMBER: Number;
}

mod sealed {
    pub trait Sealed {}
}

numbers! {
    1 I8 i8;
    2 U8 u8;
    3 I16 i16;
    4 U16 u16;
    5 I32 i32;
    6 U32 u32;
    7 I64 i64;
    8 U64 u64;
    9 F32 f32;
    10 F64 f64;
}

/// Changes numbers between this processor's order and another one.
pub(super) fn reorder(bytes: &mut [u8], number: Number, order: Order) {
    if order == Order::NATIVE {
        return;
    }
    match number.size() {
        2 => each(bytes, |one| u16::from_ne_bytes(one).swap_bytes().to_ne_bytes()),
        4 => each(bytes, |one| u32::from_ne_bytes(one).swap_bytes().to_ne_bytes()),
        8 => each(bytes, |one| u64::from_ne_bytes(one).swap_bytes().to_ne_bytes()),
        _ => {}
    }
}

fn each<const N: usize>(bytes: &mut [u8], swap: impl Fn([u8; N]) -> [u8; N]) {
    let (chunks, _) = bytes.as_chunks_mut::<N>();
    chunks.iter_mut().for_each(|one| *one = swap(*one));
}
