//! Operations on numbers in memory that others may reach: which there are, and what each does.
//!
//! Pure: bytes in, bytes out. Whoever calls holds whatever makes an operation happen as one. The numbers of operations and types are
//! those of libfabric, and go over the wire.

/// What is done to a number. All of them can return the number that was there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Min = 0,
    Max = 1,
    Sum = 2,
    Product = 3,
    LogicalOr = 4,
    LogicalAnd = 5,
    BitOr = 6,
    BitAnd = 7,
    LogicalXor = 8,
    BitXor = 9,
    Read = 10,
    Write = 11,
    /// Writes where what is there equals what is compared with; those after it: where what is compared with is not equal, less or
    /// equal, less, greater or equal, greater than what is there.
    SwapIfEqual = 12,
    SwapIfNot = 13,
    SwapIfLessEqual = 14,
    SwapIfLess = 15,
    SwapIfGreaterEqual = 16,
    SwapIfGreater = 17,
    /// Writes the bits that are set in what is compared with.
    SwapMasked = 18,
    Difference = 19,
}

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum AtomicType {
    I8 = 0,
    U8 = 1,
    I16 = 2,
    U16 = 3,
    I32 = 4,
    U32 = 5,
    I64 = 6,
    U64 = 7,
    F32 = 8,
    F64 = 9,
    /// Two numbers: real and imaginary part.
    Complex32 = 10,
    Complex64 = 11,
    /// Sixteen bytes in memory; it can be read, written and compared for equality.
    LongDouble = 12,
    /// Two of them.
    ComplexLongDouble = 13,
    I128 = 14,
    U128 = 15,
}

impl AtomicOp {
    /// Every operation.
    pub const ALL: [Self; 20] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Product,
        Self::LogicalOr,
        Self::LogicalAnd,
        Self::BitOr,
        Self::BitAnd,
        Self::LogicalXor,
        Self::BitXor,
        Self::Read,
        Self::Write,
        Self::SwapIfEqual,
        Self::SwapIfNot,
        Self::SwapIfLessEqual,
        Self::SwapIfLess,
        Self::SwapIfGreaterEqual,
        Self::SwapIfGreater,
        Self::SwapMasked,
        Self::Difference,
    ];

    /// The operation of that number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether it uses the number to compare with.
    pub fn compares(self) -> bool {
        (Self::SwapIfEqual as u8..=Self::SwapMasked as u8).contains(&(self as u8))
    }
}

impl AtomicType {
    /// Every type.
    pub const ALL: [Self; 16] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::Complex32,
        Self::Complex64,
        Self::LongDouble,
        Self::ComplexLongDouble,
        Self::I128,
        Self::U128,
    ];

    /// The type of that number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|of| *of as u32 == number)
    }

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex32 => 8,
            Self::Complex64 | Self::LongDouble | Self::I128 | Self::U128 => 16,
            Self::ComplexLongDouble => 32,
        }
    }
}

/// Whether the operation is there for that type.
pub fn is_supported(op: AtomicOp, of: AtomicType) -> bool {
    let mut memory = [0; 32];
    apply_one(op, of, &mut memory[..of.size()], &[0; 32][..of.size()], &[0; 32][..of.size()]).is_some()
}

/// Does the operation to each number in `memory`, whose length is a multiple of the type's size; `operand` and `compare` are as long, or
/// empty where the operation does not use them. `None`, and nothing done: no such operation, or lengths that do not fit.
pub fn apply(op: AtomicOp, of: AtomicType, memory: &mut [u8], operand: &[u8], compare: &[u8]) -> Option<()> {
    let size = of.size();
    let fits = |bytes: &[u8], needed: bool| bytes.len() == if needed { memory.len() } else { bytes.len() };
    let is_whole = memory.len().is_multiple_of(size);
    if !is_whole || !fits(operand, op != AtomicOp::Read) || !fits(compare, op.compares()) || !is_supported(op, of) {
        return None;
    }
    for (i, number) in memory.chunks_exact_mut(size).enumerate() {
        let other = operand.get(i * size..(i + 1) * size).unwrap_or(&[0; 32][..size]);
        let compared = compare.get(i * size..(i + 1) * size).unwrap_or(&[0; 32][..size]);
        apply_one(op, of, number, other, compared)?;
    }
    Some(())
}

fn apply_one(op: AtomicOp, of: AtomicType, memory: &mut [u8], operand: &[u8], compare: &[u8]) -> Option<()> {
    match of {
        AtomicType::I8 => integer::<i8, 1>(op, memory, operand, compare),
        AtomicType::U8 => integer::<u8, 1>(op, memory, operand, compare),
        AtomicType::I16 => integer::<i16, 2>(op, memory, operand, compare),
        AtomicType::U16 => integer::<u16, 2>(op, memory, operand, compare),
        AtomicType::I32 => integer::<i32, 4>(op, memory, operand, compare),
        AtomicType::U32 => integer::<u32, 4>(op, memory, operand, compare),
        AtomicType::I64 => integer::<i64, 8>(op, memory, operand, compare),
        AtomicType::U64 => integer::<u64, 8>(op, memory, operand, compare),
        AtomicType::I128 => integer::<i128, 16>(op, memory, operand, compare),
        AtomicType::U128 => integer::<u128, 16>(op, memory, operand, compare),
        AtomicType::F32 => float::<f32, 4>(op, memory, operand, compare),
        AtomicType::F64 => float::<f64, 8>(op, memory, operand, compare),
        AtomicType::Complex32 => complex::<f32, 4>(op, memory, operand, compare),
        AtomicType::Complex64 => complex::<f64, 8>(op, memory, operand, compare),
        AtomicType::LongDouble | AtomicType::ComplexLongDouble => opaque(op, memory, operand, compare),
    }
}

/// A number made of `N` bytes.
trait Number<const N: usize>: Copy + PartialOrd + Default {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn one() -> Self;
}

/// An integer: it has bits.
trait Bits: Sized {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
}

macro_rules! integers {
    ($($of:ty, $n:literal;)*) => {$(
        impl Number<$n> for $of {
            fn read(bytes: [u8; $n]) -> Self { Self::from_ne_bytes(bytes) }
            fn bytes(self) -> [u8; $n] { self.to_ne_bytes() }
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn one() -> Self { 1 }
        }
        impl Bits for $of {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
            fn not(self) -> Self { !self }
        }
    )*};
}

macro_rules! floats {
    ($($of:ty, $n:literal;)*) => {$(
        impl Number<$n> for $of {
            fn read(bytes: [u8; $n]) -> Self { Self::from_ne_bytes(bytes) }
            fn bytes(self) -> [u8; $n] { self.to_ne_bytes() }
            fn plus(self, other: Self) -> Self { self + other }
            fn minus(self, other: Self) -> Self { self - other }
            fn times(self, other: Self) -> Self { self * other }
            fn one() -> Self { 1.0 }
        }
    )*};
}

integers! { i8, 1; u8, 1; i16, 2; u16, 2; i32, 4; u32, 4; i64, 8; u64, 8; i128, 16; u128, 16; }
floats! { f32, 4; f64, 8; }

fn read<T: Number<N>, const N: usize>(bytes: &[u8]) -> Option<T> {
    Some(T::read(bytes.try_into().ok()?))
}

fn store<T: Number<N>, const N: usize>(memory: &mut [u8], value: T) -> Option<()> {
    memory.copy_from_slice(value.bytes().get(..memory.len())?);
    Some(())
}

fn integer<T: Number<N> + Bits, const N: usize>(
    op: AtomicOp,
    m: &mut [u8],
    operand: &[u8],
    compare: &[u8],
) -> Option<()> {
    let (old, new, mask) = (read::<T, N>(m)?, read::<T, N>(operand)?, read::<T, N>(compare)?);
    let value = match op {
        AtomicOp::BitOr => old.or(new),
        AtomicOp::BitAnd => old.and(new),
        AtomicOp::BitXor => old.xor(new),
        AtomicOp::SwapMasked => new.and(mask).or(old.and(mask.not())),
        _ => ordered(op, old, new, mask)?,
    };
    store(m, value)
}

fn float<T: Number<N>, const N: usize>(op: AtomicOp, m: &mut [u8], operand: &[u8], compare: &[u8]) -> Option<()> {
    let value = ordered(op, read::<T, N>(m)?, read::<T, N>(operand)?, read::<T, N>(compare)?)?;
    store(m, value)
}

/// What numbers with an order can do.
fn ordered<T: Number<N>, const N: usize>(op: AtomicOp, old: T, new: T, compared: T) -> Option<T> {
    let truth = |value: T| value != T::default();
    let number = |truth: bool| if truth { T::one() } else { T::default() };
    let swap = |yes: bool| if yes { new } else { old };
    Some(match op {
        AtomicOp::Min => swap(new < old),
        AtomicOp::Max => swap(new > old),
        AtomicOp::Sum => old.plus(new),
        AtomicOp::Difference => old.minus(new),
        AtomicOp::Product => old.times(new),
        AtomicOp::LogicalOr => number(truth(old) || truth(new)),
        AtomicOp::LogicalAnd => number(truth(old) && truth(new)),
        AtomicOp::LogicalXor => number(truth(old) != truth(new)),
        AtomicOp::Read => old,
        AtomicOp::Write => new,
        AtomicOp::SwapIfEqual => swap(compared == old),
        AtomicOp::SwapIfNot => swap(compared != old),
        AtomicOp::SwapIfLessEqual => swap(compared <= old),
        AtomicOp::SwapIfLess => swap(compared < old),
        AtomicOp::SwapIfGreaterEqual => swap(compared >= old),
        AtomicOp::SwapIfGreater => swap(compared > old),
        AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor | AtomicOp::SwapMasked => return None,
    })
}

/// Complex numbers have no order.
fn complex<T: Number<N>, const N: usize>(op: AtomicOp, m: &mut [u8], operand: &[u8], compare: &[u8]) -> Option<()> {
    let pair = |bytes: &[u8]| Some((read::<T, N>(bytes.get(..N)?)?, read::<T, N>(bytes.get(N..)?)?));
    let (old, new, compared) = (pair(m)?, pair(operand)?, pair(compare)?);
    let truth = |(re, im): (T, T)| re != T::default() || im != T::default();
    let number = |truth: bool| (if truth { T::one() } else { T::default() }, T::default());
    let value = match op {
        AtomicOp::Sum => (old.0.plus(new.0), old.1.plus(new.1)),
        AtomicOp::Difference => (old.0.minus(new.0), old.1.minus(new.1)),
        AtomicOp::Product => {
            let re = old.0.times(new.0).minus(old.1.times(new.1));
            (re, old.0.times(new.1).plus(old.1.times(new.0)))
        }
        AtomicOp::LogicalOr => number(truth(old) || truth(new)),
        AtomicOp::LogicalAnd => number(truth(old) && truth(new)),
        AtomicOp::LogicalXor => number(truth(old) != truth(new)),
        AtomicOp::Read => old,
        AtomicOp::Write => new,
        AtomicOp::SwapIfEqual if compared == old => new,
        AtomicOp::SwapIfNot if compared != old => new,
        AtomicOp::SwapIfEqual | AtomicOp::SwapIfNot => old,
        _ => return None,
    };
    let (re, im) = m.split_at_mut_checked(N)?;
    store(re, value.0)?;
    store(im, value.1)
}

/// Numbers we cannot calculate with.
fn opaque(op: AtomicOp, memory: &mut [u8], operand: &[u8], compare: &[u8]) -> Option<()> {
    let writes = match op {
        AtomicOp::Read => false,
        AtomicOp::Write => true,
        AtomicOp::SwapIfEqual => memory == compare,
        AtomicOp::SwapIfNot => memory != compare,
        _ => return None,
    };
    if writes {
        memory.copy_from_slice(operand);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<const N: usize>(op: AtomicOp, of: AtomicType, old: [u8; N], new: [u8; N], compared: [u8; N]) -> [u8; N] {
        let mut memory = old;
        apply(op, of, &mut memory, &new, &compared).expect("supported");
        memory
    }

    #[test]
    fn integers_wrap_compare_and_swap() {
        let i32 = |op, old: i32, new: i32, compared: i32| {
            i32::from_ne_bytes(one(op, AtomicType::I32, old.to_ne_bytes(), new.to_ne_bytes(), compared.to_ne_bytes()))
        };
        assert_eq!(i32(AtomicOp::Sum, i32::MAX, 1, 0), i32::MIN);
        assert_eq!(i32(AtomicOp::Min, -1, 1, 0), -1);
        assert_eq!(i32(AtomicOp::Max, -1, 1, 0), 1);
        assert_eq!(i32(AtomicOp::Difference, 3, 5, 0), -2);
        assert_eq!(i32(AtomicOp::LogicalAnd, 7, 0, 0), 0);
        assert_eq!(i32(AtomicOp::LogicalXor, 7, 0, 0), 1);
        assert_eq!(i32(AtomicOp::SwapIfEqual, 7, 9, 7), 9);
        assert_eq!(i32(AtomicOp::SwapIfEqual, 7, 9, 8), 7);
        assert_eq!(i32(AtomicOp::SwapIfLess, 7, 9, 6), 9);
        assert_eq!(i32(AtomicOp::SwapIfGreaterEqual, 7, 9, 6), 7);
        assert_eq!(i32(AtomicOp::SwapMasked, 0x0f0f, 0x1234, 0x00ff), 0x0f34);
    }

    #[test]
    fn floats_have_no_bits_and_complex_numbers_no_order() {
        assert!(!is_supported(AtomicOp::BitOr, AtomicType::F64));
        assert!(!is_supported(AtomicOp::Min, AtomicType::Complex64));
        assert!(!is_supported(AtomicOp::Sum, AtomicType::LongDouble));
        assert!(is_supported(AtomicOp::Write, AtomicType::ComplexLongDouble));
        let pair = |re: f32, im: f32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&re.to_ne_bytes());
            bytes[4..].copy_from_slice(&im.to_ne_bytes());
            bytes
        };
        let product = one(AtomicOp::Product, AtomicType::Complex32, pair(1.0, 2.0), pair(3.0, 4.0), [0; 8]);
        assert_eq!(product, pair(-5.0, 10.0));
    }

    #[test]
    fn numbers_are_those_of_the_table() {
        for (i, op) in AtomicOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i);
        }
        assert_eq!(AtomicType::from_number(9), Some(AtomicType::F64));
        assert_eq!(AtomicType::from_number(16), None);
    }

    #[test]
    fn lengths_that_do_not_fit_do_nothing() {
        let mut memory = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(apply(AtomicOp::Sum, AtomicType::U32, &mut memory, &[1; 4], &[]), None);
        assert_eq!(apply(AtomicOp::SwapIfEqual, AtomicType::U32, &mut memory, &[1; 8], &[]), None);
        assert_eq!(apply(AtomicOp::Sum, AtomicType::U32, &mut memory[..7], &[1; 7], &[]), None);
        assert_eq!(memory, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(apply(AtomicOp::Sum, AtomicType::U8, &mut memory, &[1; 8], &[]), Some(()));
        assert_eq!(memory, [2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
