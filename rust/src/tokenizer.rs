use crate::ffi::{fallible, free, infallible, slice, text, WeftIds, WeftText};
use std::collections::HashSet;
use std::str::FromStr;
use tokenizers::Tokenizer;

pub struct WeftTokenizer {
    tokenizer: Tokenizer,
    special: HashSet<u32>,
    vocab_size: u32,
}

impl WeftTokenizer {
    fn parse(json: &str) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_str(json).map_err(|e| e.to_string())?;
        // As transformers does: a file's truncation and padding are for training batches.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocab_size = match largest {
            Some(id) => id.checked_add(1).ok_or("a token has the id 2^32 - 1")?,
            None => 0,
        };
        Ok(WeftTokenizer { tokenizer, special, vocab_size })
    }
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_parse(
    json: *const u8,
    size: usize,
    error: *mut WeftText,
) -> *mut WeftTokenizer {
    fallible(error, || WeftTokenizer::parse(text(json, size)?).map(Box::new))
        .map_or(std::ptr::null_mut(), Box::into_raw)
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_free(tokenizer: *mut WeftTokenizer) {
    free(tokenizer);
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_encode(
    tokenizer: *const WeftTokenizer,
    data: *const u8,
    size: usize,
    add_special_tokens: bool,
    ids: *mut WeftIds,
    error: *mut WeftText,
) -> bool {
    let encoded = fallible(error, || {
        let encoding = (*tokenizer).tokenizer.encode_fast(text(data, size)?, add_special_tokens);
        Ok(encoding.map_err(|e| e.to_string())?.get_ids().to_vec())
    });
    encoded.map(|found| ids.write(found.into())).is_some()
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_decode(
    tokenizer: *const WeftTokenizer,
    ids: *const u32,
    size: usize,
    skip_special_tokens: bool,
    out: *mut WeftText,
    error: *mut WeftText,
) -> bool {
    let decoded = fallible(error, || {
        (*tokenizer)
            .tokenizer
            .decode(slice(ids, size), skip_special_tokens)
            .map_err(|e| e.to_string())
    });
    decoded.map(|found| out.write(found.into())).is_some()
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_id_to_token(
    tokenizer: *const WeftTokenizer,
    id: u32,
    token: *mut WeftText,
) -> bool {
    infallible(|| (*tokenizer).tokenizer.id_to_token(id))
        .map(|found| token.write(found.into()))
        .is_some()
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_token_to_id(
    tokenizer: *const WeftTokenizer,
    data: *const u8,
    size: usize,
    id: *mut u32,
) -> bool {
    let found =
        infallible(|| text(data, size).ok().and_then(|t| (*tokenizer).tokenizer.token_to_id(t)));
    found.map(|found| id.write(found)).is_some()
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_vocab_size(tokenizer: *const WeftTokenizer) -> u32 {
    (*tokenizer).vocab_size
}

#[no_mangle]
pub unsafe extern "C" fn weft_tokenizer_is_special(
    tokenizer: *const WeftTokenizer,
    id: u32,
) -> bool {
    (*tokenizer).special.contains(&id)
}
