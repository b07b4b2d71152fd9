package ui

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/boxpair/boxpair/store/inbox"
)

// picture is a page as it stands in the documents.
type picture struct {
	name          string
	page          string
	width, height int64
	theme         string
	unfold        string // the text of a form to unfold
}

// pictures are the pages of the documents, each on a desk and on a phone, light and dark.
func pictures(event, caused string) (list []picture) {
	for _, page := range []struct{ name, address, unfold string }{
		{"overview", "/", ""}, {"dead-letters", "/dead", "Redrive…"}, {"event", "/events/shop/" + event, ""}, {"tree", "/events/shop/" + caused, ""}, {"routes", "/routes", ""},
	} {
		for _, theme := range []string{"light", "dark"} {
			list = append(list,
				picture{page.name + "-" + theme, page.address, 1280, 860, theme, page.unfold},
				picture{page.name + "-phone-" + theme, page.address, 390, 844, theme, page.unfold})
		}
	}
	return list
}

// TestPicturesShowThePages takes the pictures of the documents: with BOXPAIR_WRITE_DOCS=1 it writes
// them. Else it sees that each is there, and as small as a page of a document should load.
func TestPicturesShowThePages(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	id, _ := p.dead("mail.requested")
	found, err := p.scene.Inbox.SearchMessages(t.Context(), inbox.Query{Consumer: "stock/notify", States: []inbox.State{inbox.AppliedState}, Limit: 100})
	if err != nil || len(found.Messages) == 0 {
		t.Fatal(found, err)
	}
	caused := found.Messages[len(found.Messages)-1].ID.String()
	if os.Getenv("BOXPAIR_WRITE_DOCS") != "" {
		p.makeTraffic()
	}
	const most = 150 << 10
	for _, pic := range pictures(id.String(), caused) {
		path := filepath.Join("../../docs/images", pic.name+".png")
		if os.Getenv("BOXPAIR_WRITE_DOCS") != "" {
			p.take(pic, path)
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() > most {
			t.Errorf("%s: %v, or larger than %d bytes", path, err, most)
		}
	}
}

// makeTraffic lets the shop be busy for as long as the chart needs to show something.
func (p *tab) makeTraffic() {
	p.Helper()
	p.look(1280, 860, "light")
	p.visit("/")
	for i := range 16 {
		if err := p.scene.Tick(p.Context(), 40+i*7%23, 9+i%4); err != nil {
			p.Fatal(err)
		}
		p.waitFor(fmt.Sprintf(`document.querySelector("[data-chart]").chart?.data[0].length > %d`, i))
	}
}

// take writes a picture, with as few colours as do not show.
func (p *tab) take(pic picture, path string) {
	p.Helper()
	p.look(pic.width, pic.height, pic.theme)
	if pic.page == "/" {
		if err := p.scene.Tick(p.Context(), 44, 12); err != nil {
			p.Fatal(err)
		}
	}
	p.visit(pic.page)
	if pic.page == "/" {
		p.waitFor(`document.querySelector(".plot canvas") !== null`)
	}
	if pic.unfold != "" {
		p.click("summary", pic.unfold)
		p.waitFor(`document.querySelector("details.act[open]") !== null`)
	}
	eval[chromedp.Void](p, `scrollTo(0, 0)`)
	raw, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	shot, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		p.Fatal(err)
	}
	var small bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&small, indexed(shot)); err != nil {
		p.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, small.Bytes(), 0o644); err != nil {
		p.Fatal(err)
	}
}

// indexed returns a picture with its 256 most frequent colours.
func indexed(shot image.Image) image.Image {
	counts := make(map[color.RGBA]int)
	box := shot.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			counts[color.RGBAModel.Convert(shot.At(x, y)).(color.RGBA)]++
		}
	}
	var palette color.Palette
	for len(palette) < 256 && len(counts) > 0 {
		var most color.RGBA
		for c, n := range counts {
			if n > counts[most] {
				most = c
			}
		}
		palette = append(palette, most)
		delete(counts, most)
	}
	small := image.NewPaletted(box, palette)
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			small.Set(x, y, shot.At(x, y))
		}
	}
	return small
}
