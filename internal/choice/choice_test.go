package choice

import "testing"

type color uint8

var colors = []string{"red", "light blue"}

func TestWordsAreReadAndWritten(t *testing.T) {
	t.Parallel()
	for i, word := range colors {
		text, err := Text("Color", colors, color(i))
		if err != nil || string(text) != word {
			t.Errorf("color %d is written %q, %v", i, text, err)
		}
		got := color(7)
		if err := Parse("Color", colors, text, &got); err != nil || got != color(i) {
			t.Errorf("%q is read as %d, %v", text, got, err)
		}
	}
}

func TestOtherValuesAreRefusedByName(t *testing.T) {
	t.Parallel()
	if text, err := Text("Color", colors, color(2)); err == nil || err.Error() != "Color: 2 is none of its values" {
		t.Errorf("got %q, %v", text, err)
	}
	for _, text := range []string{"", "Red", "1", "light_blue"} {
		got := color(7)
		if err := Parse("Color", colors, []byte(text), &got); err == nil || got != 7 {
			t.Errorf("%q is read as %d, %v", text, got, err)
		}
	}
	if err := Parse("Color", colors, []byte("black"), new(color)); err == nil || err.Error() != `Color: "black" is none of red, light blue` {
		t.Errorf("got %v", err)
	}
}
