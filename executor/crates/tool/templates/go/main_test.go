package main

import "testing"

func TestWordsAreCounted(t *testing.T) {
	counted, err := countWords("one two\n three")
	if err != nil || counted.Words != 3 {
		t.Fatalf("%v, %v", counted, err)
	}
}

func TestATextWithoutWordsIsAnError(t *testing.T) {
	if _, err := countWords(" "); err == nil {
		t.Fatal("no error")
	}
}
