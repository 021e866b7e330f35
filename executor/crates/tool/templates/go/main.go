// A command that counts the words of a text. The arguments are JSON on standard input, the result is JSON on standard
// output, and standard error is the log.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

type arguments struct {
	Text string `json:"text"`
}

type result struct {
	Words int `json:"words"`
}

func countWords(text string) (result, error) {
	words := len(strings.Fields(text))
	if words == 0 {
		return result{}, errors.New("`text` has no words")
	}
	return result{Words: words}, nil
}

func run() error {
	var given arguments
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		return err
	}
	counted, err := countWords(given.Text)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "counted %d words\n", counted.Words)
	return json.NewEncoder(os.Stdout).Encode(counted)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
