#pragma once
/* What weft takes from Rust crates, as C: BLAKE3 trees (`blake3`), tokenizers (`tokenizers`) and
 * chat templates
 * (`minijinja`). Only src/weft/digest and src/weft/text include this.
 *
 * Every string is UTF-8 and counted, not terminated. Handles and WeftText / WeftIds that come back
 * are owned by the caller, who frees each with its function; freeing null is fine. A function that
 * can fail leaves the reason in `error` (written only then) and returns null or false. A panic
 * inside never crosses: where a function can fail it is an error, elsewhere it aborts. Const
 * handles may be used from several threads at once. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct WeftText {
  char* data;
  size_t size;
} WeftText;
void weft_text_free(WeftText text);

typedef struct WeftIds {
  uint32_t* data;
  size_t size;
} WeftIds;
void weft_ids_free(WeftIds ids);

/* BLAKE3. `offset_bytes` is where the input lies in the whole: 0, or a multiple of the subtree's
 * size. */
typedef struct WeftHasher WeftHasher;
WeftHasher* weft_hasher_new(uint64_t offset_bytes);
void weft_hasher_free(WeftHasher* hasher);
void weft_hasher_update(WeftHasher* hasher, const uint8_t* data, size_t size);
/* The root digest, or the chaining value of the subtree; of the latter the input must not be empty.
 */
void weft_hasher_finish(const WeftHasher* hasher, bool is_root, uint8_t out[32]);
/* The value of the parent of two subtrees. */
void weft_hasher_merge(const uint8_t left[32], const uint8_t right[32], bool is_root,
                       uint8_t out[32]);

typedef struct WeftTokenizer WeftTokenizer;
WeftTokenizer* weft_tokenizer_parse(const char* json, size_t size, WeftText* error);
void weft_tokenizer_free(WeftTokenizer* tokenizer);
bool weft_tokenizer_encode(const WeftTokenizer* tokenizer, const char* text, size_t size,
                           bool add_special_tokens, WeftIds* ids, WeftText* error);
bool weft_tokenizer_decode(const WeftTokenizer* tokenizer, const uint32_t* ids, size_t size,
                           bool skip_special_tokens, WeftText* text, WeftText* error);
/* False when there is none. */
bool weft_tokenizer_id_to_token(const WeftTokenizer* tokenizer, uint32_t id, WeftText* token);
bool weft_tokenizer_token_to_id(const WeftTokenizer* tokenizer, const char* token, size_t size,
                                uint32_t* id);
uint32_t weft_tokenizer_vocab_size(const WeftTokenizer* tokenizer);
bool weft_tokenizer_is_special(const WeftTokenizer* tokenizer, uint32_t id);

typedef struct WeftTemplate WeftTemplate;
WeftTemplate* weft_template_parse(const char* source, size_t size, WeftText* error);
void weft_template_free(WeftTemplate* chat_template);
/* `context` is a JSON object. */
bool weft_template_render(const WeftTemplate* chat_template, const char* context, size_t size,
                          WeftText* text, WeftText* error);

#ifdef __cplusplus
}
#endif
