"""Records of questions about images, the formats that hold them, and pages of PDFs and of real documents."""
