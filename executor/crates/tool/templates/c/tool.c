/* A command that counts the words of a text. The arguments are JSON on standard input, the result is JSON on
 * standard output, and standard error is the log. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { END = -1, LETTER = 'x' };

static int next_byte(void) {
    int byte = getchar();
    if (byte == EOF) {
        fprintf(stderr, "the arguments are not complete\n");
        exit(2);
    }
    return byte;
}

/* Returns the next character of a JSON string, or END after its last. What is not ASCII counts as a letter. */
static int next_character(void) {
    int byte = next_byte();
    if (byte == '"') return END;
    if (byte != '\\') return byte < 0x80 ? byte : LETTER;
    byte = next_byte();
    if (byte == 'n' || byte == 'r' || byte == 't' || byte == 'f') return ' ';
    if (byte != 'u') return LETTER;
    char digits[5] = {0};
    for (int nth = 0; nth < 4; nth++) digits[nth] = (char)next_byte();
    long code = strtol(digits, NULL, 16);
    return code < 0x80 ? (int)code : LETTER;
}

static bool is_space(int character) {
    return character == ' ' || (character >= '\t' && character <= '\r');
}

int main(void) {
    /* The executor has checked the arguments against `tool.toml`: the input is {"text":"..."}. */
    while (next_byte() != ':') {}
    while (next_byte() != '"') {}
    long words = 0;
    bool is_in_word = false;
    for (int character; (character = next_character()) != END;) {
        bool is_letter = !is_space(character);
        if (is_letter && !is_in_word) words++;
        is_in_word = is_letter;
    }
    if (words == 0) {
        fprintf(stderr, "`text` has no words\n");
        return 1;
    }
    fprintf(stderr, "counted %ld words\n", words);
    printf("{\"words\": %ld}\n", words);
    return 0;
}
